"""One file per group of URLs. An endpoint reads a body, asks the service, and makes a response.

In reading order: `chat`, `responses`, `messages`, `completions`, `audio`, `pooling`, `scores`, `tokens`, `models`,
`status`, `sleep`; `replies` is what they share of FastAPI.
"""
