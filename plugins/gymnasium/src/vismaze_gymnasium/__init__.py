"""Any Gymnasium environment with frames and discrete actions, in words."""
