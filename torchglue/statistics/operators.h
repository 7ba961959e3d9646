// Two operators of koila's own, which regions run per micro-batch where the program called batch norm, or asked for a variance:
//
//   koila::statistics(Tensor x, int[] dims, Tensor mean, Tensor var, int count) -> (Tensor mean, Tensor var)
//     Mean and biased variance of the full batch over `dims` (ascending; they have lost these), `count` entries each, as functions of a
//     micro-batch's part x: hands them back as they are, and gives x its share of their gradients. The variance of all rows has no
//     gradient by way of their mean: the sum of squares has its least value there.
//   koila::normalise(Tensor x, Tensor mean, Tensor var, Tensor? weight, Tensor? bias, float eps) -> Tensor
//     (x - mean) / sqrt(var + eps) * weight + bias, by channel (dimension 1), with gradients for mean and var as well.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace koila {

c10::OperatorHandle statistics_operator();
c10::OperatorHandle normalise_operator();

}  // namespace koila
