"""What it gains to fetch a function's input while its worker starts (Truffle, section V)."""
