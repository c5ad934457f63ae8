"""What it gains to run a function's first requests while its worker starts (the paper `initscripts`, section 7)."""
