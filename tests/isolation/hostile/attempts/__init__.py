"""What a hostile function tries, by subject. Each attempt returns `[escaped, what it saw]`."""
