"""A cluster that can be broken: processes, links, disks, and what is left of them."""
