"""The HTTP server, compatible with OpenAI's API and with Anthropic's: `corellm serve MODEL`.

Knows HTTP, limits and clients; everything about models is behind `corellm.serving`. In reading order:

    options         what the operator sets, with `limits` of requests and `checks` of both
    running         serves an application on a socket until told to stop, or the `watchdog` sees the engine hang; with
                    `connections` and `http_connection`
    gate            what every request passes before the application, with `keys`, `intake`, `uploads`, and `receiving`,
                    which reads `json_text` or a `form`; an `exchange` is one request and its response; what is large
                    is read `aside`
    app             the application: `endpoints` of URLs, their `requests` and `responses`, and the OpenAPI `document`
    service         what endpoints share: the engine's client, `preparation` and `metrics`; with `tasks`
    preparation     a request to a prompt: `conversation` checks messages; `media_sources` loads what they name, with
                    `fetching` and from `embeddings`
    sampling        a request to sampling parameters
    pooled          runs the inputs of a request to a model that pools, with `scoring` of pairs; `uses` says which
                    server to start instead
    errors          what clients are told; `dialects` are the forms that the APIs have for it
    logs            one line per request; `metrics` and `tracing` count and time, by `stages`
    batch           requests from a file, through the same application
    loadgen         load for a server, and what its clients wait for
    commands        `corellm serve`, `batch` and `bench`, which `extension` adds
"""
