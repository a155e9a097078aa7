"""The schedulers of the papers: MoE-SpAc, SP-MoE, MoE-SpeQ, and the systems that they are compared with.

`spac.scheduler.choice` has their names. Nothing below imports this room.
"""
