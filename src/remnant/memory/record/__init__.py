"""Recording a task: from batches to Gram matrices to grown subspaces."""
