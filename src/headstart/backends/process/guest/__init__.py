"""Code that runs outside the service: stdlib only, Python 3.8 or newer, single-threaded."""
