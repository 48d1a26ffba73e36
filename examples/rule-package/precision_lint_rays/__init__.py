"""Rules of precision-lint for volume rendering."""
