"""Clean noisy video with unrolled transformers whose loss goes down layer after layer."""
