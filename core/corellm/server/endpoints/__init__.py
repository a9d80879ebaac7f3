"""One file per group of URLs. An endpoint reads a body, asks the service, and makes a response."""
