"""The two engines, and learning: how a posterior is found."""
