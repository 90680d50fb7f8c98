"""What this host knows of its peers: the registry folder, processes, acceptor pages, keys."""
