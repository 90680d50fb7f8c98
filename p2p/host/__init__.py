"""The peers of one host: the registry folder, processes, acceptor records, keys, limits of memory and files."""
