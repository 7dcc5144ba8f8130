"""An OpenAI-compatible model server that plays recordings.

It plays what a recording says, token by token on an absolute schedule, and nothing else:
a conversation that no recording knows gets an error that says so. Above it are the demo
and the benches; below it nothing but `ids` and the web server.
"""

from headstart.bench.replay_model.app import Pace, replay_app
from headstart.bench.replay_model.recordings import RecordedCall, RecordedStep, Recording, load_recordings
from headstart.bench.replay_model.server import serve, serve_on_loopback

__all__ = [
    "Pace",
    "RecordedCall",
    "RecordedStep",
    "Recording",
    "load_recordings",
    "replay_app",
    "serve",
    "serve_on_loopback",
]
