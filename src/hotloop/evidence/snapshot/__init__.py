"""Running processes -> what each of their threads does, and one verdict. They contain nothing of hotloop."""
