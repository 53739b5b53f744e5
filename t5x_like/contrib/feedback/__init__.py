"""Learning from feedback: preferences (DPO, ORPO, reward models) and rewards (GRPO, RLOO, PPO).

`completions` answers prompts within a step, and `rewards/` scores the answers.
"""
