"""What the app does, without its page: previews, whole files, comparisons, sessions."""
