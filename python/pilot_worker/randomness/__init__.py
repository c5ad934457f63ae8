"""Gives each worker numbers of its own, also from generators that were created before the fork."""
