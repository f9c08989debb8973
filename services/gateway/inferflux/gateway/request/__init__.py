"""A request on its way: from an admitted call to its last chunk."""
