"""How a frame becomes a call of the function: events, ASGI, WSGI; and how its result becomes an answer."""
