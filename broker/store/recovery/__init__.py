"""Opening a store, cutting its end, removing its beginning."""
