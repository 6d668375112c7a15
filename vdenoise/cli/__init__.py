"""The commands ``vdenoise`` and ``vdenoise-train``."""
