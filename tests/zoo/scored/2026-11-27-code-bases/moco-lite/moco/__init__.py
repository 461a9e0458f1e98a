"""Small momentum-contrast pretraining."""
