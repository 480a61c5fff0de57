"""How it is called: one file a command; a command is imported only when it is called."""
