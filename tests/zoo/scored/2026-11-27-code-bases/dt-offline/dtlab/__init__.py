"""Return-conditioned sequence models for offline control."""
