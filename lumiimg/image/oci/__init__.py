"""Images in the formats of registries and `docker save`: tars as layers, with whiteouts that remove files below."""
