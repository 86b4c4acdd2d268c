"""The text a model is calibrated on unless one gives another: some of everything that people ask models about.

It is part of what a calibration's digest stands for. Whoever changes a letter of it makes new calibrations.
"""

TEXT = """\
The harbour office opens at six. Before that the only light on the quay comes from the bakery, where two women have
been at work since three, and from the windows of the night ferry, which lies at its berth with the engines off. A
man with a dog walks along the wall, stops at the last bench and reads the board: wind from the south-west, four to
five, rain in the afternoon, sea calm at first. He has read it every morning for eleven years. "Calm at first," he
says to the dog. "They always write that."

Question: Why is the sky blue during the day and red in the evening?
Answer: Sunlight is a mixture of all colours. Air scatters short waves, which we see as blue, much more strongly than
long ones. During the day scattered blue light reaches us from everywhere. In the evening the light has a longer way
through the air, most of the blue is lost on that way, and what is left looks orange or red. Dust makes it stronger.

def median(values: list[float]) -> float:
    \"\"\"The middle one of the values, or the mean of the two in the middle.\"\"\"
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    half = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[half]
    return (ordered[half - 1] + ordered[half]) / 2

print(median([3, 1, 2]))  # 2

Please sum up the letter below in three points, and be polite: the landlord is a friend of my parents.
1. The heating in the kitchen has not worked since the second of November, although it was repaired twice.
2. The rent was raised by 4.5 percent, from 820 to 857 a month, without the notice that the contract asks for.
3. We would like to stay, and we are ready to talk about both on any evening next week after 18:30.

year,rain_mm,days_of_frost,harvest_t
2019,612,41,18.4
2020,548,33,17.9
2021,701,52,15.2
2022,433,29,12.7
2023,655,38,19.1

If a train leaves at 9:40 and needs 2 hours and 35 minutes, it arrives at 12:15. With 12 minutes of delay it is 12:27,
and the bus at 12:25 is gone. The next one goes at 12:55, so that we lose half an hour: 12:55 - 12:25 = 30 minutes.
Let x be the price of a ticket. Then 3x + 7 = 40, hence 3x = 33 and x = 11. Check: 3 * 11 + 7 = 33 + 7 = 40.

User: can u tell me how to get red wine out of a white shirt?? its urgent lol
Assistant: Yes, and do it while the stain is still wet. Blot it with a clean cloth, do not rub. Cover it with salt, or
pour cold water through it from the back. Then wash it at 40 degrees. If it has dried, leave it in water with a little
vinegar for half an hour first.
User: ok thx, and if its wool
Assistant: Then no hot water and no rubbing at all: cold water, a drop of wool detergent, and let it dry lying flat.

Am Rand des Dorfes steht eine alte Mühle, deren Rad sich seit dreißig Jahren nicht mehr dreht. Im Sommer baden die
Kinder im Teich dahinter, im Winter laufen sie darauf Schlittschuh. Jetzt soll das Gebäude verkauft werden, und der
Gemeinderat streitet darüber, ob der Weg zum Wasser offen bleiben muss. Wer hat recht, und was sagt das Gesetz dazu?

La bibliothèque est ouverte du mardi au samedi, de dix heures à dix-huit heures. On peut emprunter cinq livres à la
fois et les garder trois semaines. Si vous perdez votre carte, demandez-en une autre au guichet; elle coûte deux euros.

El médico le dijo que caminara una hora cada día, pero llueve desde el lunes y no tiene paraguas.

小镇上只有一家书店。老板每天早上七点开门，先给窗边的植物浇水，然后坐下来看报纸。下雨的时候，孩子们会进来看书，他从来不赶他们走。

{"name": "north gate", "open": true, "count": 17, "last_seen": "2024-03-09T07:15:00Z", "tags": ["walk", "bike"],
 "limits": {"height_m": 2.1, "weight_kg": 3500}, "note": null}

Dear neighbour, thank you for your message of Tuesday. I have looked at the two offers again, and I still think that
the smaller one is better for us. It costs less, it can be delivered before the holidays, and the company has answered
every question within a day. What speaks against it is the guarantee, which ends after two years instead of five. Could
you ask them whether they would go up to three? If they agree, I will sign on Friday. Kind regards from upstairs

SELECT city, COUNT(*) AS orders, SUM(price) AS total
FROM orders WHERE placed >= '2023-01-01' AND status <> 'void'
GROUP BY city HAVING COUNT(*) > 10 ORDER BY total DESC LIMIT 5;

The cell is the smallest unit that is alive. It takes in food, gives off waste, grows and divides. Plants have a firm
wall around each cell and small green bodies inside that turn light into sugar; animals have neither, and must eat what
others have made. In a human body some cells live for days, those of the gut for example, and others for as long as
the person does. No one knows exactly how many there are. An estimate that is often repeated says thirty-seven trillion.

# Packing list
- two warm pullovers, one of them dry at any time
- matches, a knife, 20 m of rope
- **water**: at least 3 litres a day and person
- a map on paper (telephones fall into rivers)

"You can't park there," said the boy. "Why not?" "Because that's where the goat sleeps." She looked at the goat, and
the goat looked at her, and after a while she got back into the car. It was not yet noon, and already the day had gone
to somebody else. On the hill behind the church they were ringing for a wedding, or a fire; from here one could not
tell. She turned the key. Nothing happened. "It does that," said the boy, who knew nothing about cars, "when the goat
is thinking." In the end they pushed it together as far as the well, where there was shade, and she gave him an apple
and asked him his name. He had to think about that, too. Then the priest came down the path with his hat in his hand
and told them, out of breath, that it had been neither: the rope had broken, and the bell was ringing by itself.

Translate into plain English: "The aforementioned party shall, notwithstanding any prior arrangement, be liable for all
costs arising from a failure to comply with section 4(b)." Plain: if you break the rule in 4(b), you pay for what it
costs, whatever we agreed on before. Now write the same for section 7, which is about noise after ten in the evening.
"""
