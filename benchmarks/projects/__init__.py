"""Small projects with one mixed-precision bug or trap each, and a runner that scores the rules."""
