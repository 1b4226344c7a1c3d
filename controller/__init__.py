"""The cluster controller: publishes ResourceSlices and allocates ResourceClaims.

Level-triggered: every loop reads what is, compares it with what should be, and can be killed and started
again at any point. It meets the node agent in API objects only and never imports it. What is decided lives
in pure packages of ``dra_driver``; here is when to decide, and how to write it down safely.
"""
