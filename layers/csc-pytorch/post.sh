# Nothing to add: what the image has is what the layers above build on.
true
