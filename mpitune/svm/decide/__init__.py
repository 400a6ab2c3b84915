"""From solutions to answers: classes, decision values, probabilities; and the sources of kernel values for them."""
