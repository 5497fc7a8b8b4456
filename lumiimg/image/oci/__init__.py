"""Images as registries and `docker save` hand them out: layers of tars, whose whiteouts take away what is below."""
