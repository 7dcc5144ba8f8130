"""Programs that run inside sandboxes. They are handed over as text and import nothing of ours."""
