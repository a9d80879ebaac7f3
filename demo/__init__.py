"""The demo models of corellm: `demo` answers questions about drawn images, `demo-video` about drawn videos."""
