"""A fork server: a process that has imported the modules that programs need, and forks itself for each program."""
