"""Which server the model is about to need, read from its tokens.

Above it, `core.broker` turns candidates into bets; below it are only the event
vocabularies. `router.py` is the way in.
"""

from headstart.core.intent.candidates import Candidate, IntentRouter
from headstart.core.intent.router import KeywordRouter, ToolNameRouter, Union, default_router

__all__ = ["Candidate", "IntentRouter", "KeywordRouter", "ToolNameRouter", "Union", "default_router"]
