"""Messages between fronts and an engine in another process: zmq over ipc sockets in a private folder, msgpack inside."""
