"""What a template imports, and what these imports change for the functions that come later."""
