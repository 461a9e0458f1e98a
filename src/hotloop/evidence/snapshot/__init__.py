"""Processes that already run -> what each of their threads does, and one verdict. Nothing of hotloop is in them."""
