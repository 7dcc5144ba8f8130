"""Commands: the composition root. Reads the environment and files, builds everything, owns nothing."""
