"""Conversations in any order, each answer of which must be that of the same door begun anew.

A door is a way to spac: an engine, a `Llama`, a server. `door.py` says what the state machine of `machine.py`
needs of one, `doors.py` has all of them, and `setups.py` their models and options. The suite runs some
hundred rules (`test_conversations.py`). `python -m tests.conversations --rules 10000 --door llama` runs more.
"""
