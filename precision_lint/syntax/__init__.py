"""Source text to a program: files, classes, functions, and which file a name is imported from."""
