#version 450
// The layout has a second binding, which this shader does not declare.
layout(local_size_x = 1) in;
layout(binding = 0) buffer Counter { uint counter; };
void main() { counter += 1; }
