"""A small text of the package's own, for challenges of whoever has no better one.

Whoever reads the package knows it: a server that keeps pairs of words can tell these prompts from people's. A verifier
that expects such servers gives a text of its own, and shows it when it reveals the seed (``challenge``).
"""

TEXT = """
Can you explain how a bicycle stays upright when it is moving, and why it falls over when it stops? Please keep
it short and write it for somebody who has never studied physics. I have a list of names and ages in a file, and
I would like to sort the list by age and then print the names of the three oldest people. What is the best way
to do that in a few lines? My sister is moving to a small town by the sea next month, and she wants to know what
to look for when she rents an old house. Write a polite letter to the owner of the house that asks about the
roof, the heating and the garden. The letter should not be longer than one page. When I cook rice it is often
too soft on the outside and still hard on the inside. How much water do I need for two cups of rice, and how
long should it rest after the heat is off? Tell me a story about a man who repairs clocks in a village where
nobody needs to know the time. The story should have a beginning, a middle and an end, and the end should be a
surprise. Compare the two plans that I described above and tell me which one costs less over three years, if the
price of power goes up by five percent every year. Show the steps that lead to the answer, so that I can check
them myself. In the first year the farm had forty cows and one old horse, and most of the work was done by hand.
Then the road was built, and the milk could be sold in the city on the same day. Within ten years there were
more machines than people in the fields, and the school in the village had only two classes left. What does this
text say about the road, and what does the writer leave out? Give three reasons for and three reasons against
working from home, and say which of them you find the strongest. Do not use lists, write it as a short text. The
program stops with an error as soon as the file is empty, because the first line is read before the length is
known. How can I change it so that it says what is wrong and goes on with the next file? Here is what I have
tried so far, and here is what happened. Translate the last part into simple words that a child of ten would
understand, and add an example from daily life. The river is high in spring, when the snow in the hills is gone,
and low at the end of the summer. Boats that carry sand and stone can only pass the bridge when the water is
between these two marks. Who decides when the gate is opened, and how do the people who live near the bank know
that it is safe? I need a name for a shop that sells tea, old books and small plants, and a line of five words
to write below it. Then make a plan for the first week: what has to be done on each day, who can help, and what
it may cost. Thank you, that was very useful. Now do the same again for a team of six people, but leave out the
parts about money, and begin with the question that you would ask first.
"""
