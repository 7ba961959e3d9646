// koila::gradient: gradients that have a graph themselves (torch.autograd.grad(..., create_graph=True)), as an operator.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstddef>

namespace koila {

// Note [Gradients that have a graph]
// A penalty on a slope, a step of gradient descent that is differentiated through, an equation between derivatives: the program asks for gradients, and for a graph of them. To a tape and to a
// region that is a call like any other, gradient(outputs, gradients, inputs, used) -> one result for each input. `gradients` are those of the outputs; `used`: which results there are to be, zeros
// where the graph of these rows has none, or empty: those that the graph has.
// A micro-batch runs it on its own graph. What it gives for a split input are its rows' gradients, and for a whole one its part of their sum; and since its results hang on the micro-batch's graph,
// a gradient of the gradient needs nothing more. No rule of any operator's backward is needed: what is local to a row forwards is so backwards.
//
// One overload for each number of results; it is defined when it is first asked for. Any thread.
c10::OperatorHandle gradient_operator(size_t results);
// What it does, in the thread's state as it is.
void run_gradient(const c10::OperatorHandle& op, torch::jit::Stack* stack);

bool is_gradient(const c10::OperatorHandle& op);

}  // namespace koila
