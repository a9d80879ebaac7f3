"""Client libraries hold a conversation of three turns with a running server: `make clients`."""
