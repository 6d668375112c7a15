"""The app's page: text in ``page``, a module per tab, what they share in ``events``.

Gradio is imported inside functions, since that takes seconds. Annotations are not postponed in these modules:
Gradio finds the parameter for the request by its type, which is a local name here.
"""
