"""Multi-turn GRPO for vision-language agents."""
