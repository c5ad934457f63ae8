"""What exporting traces costs a warm request."""
